"""Benchmarks: what fspec costs, beside what it is compared with. Never a CI gate.

`command` holds the options, `contenders` and `speed` the race, `context`, `cycle` and
`rows` the closer looks, `report` the tables. A number is printed only after every
contender has given the same tokens.
"""
