"""One folder an operation: `reference.py` defines it, `vector.py` runs it on a CPU.

An operation's halves have one signature. The reference is a plain loop to read and to
test against; the vector form keeps the row law: a row's bits depend on that row's own
inputs and never on how many rows share the call.
"""
