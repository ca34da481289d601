"""The laws of fspec as properties, each with wrong versions that it must reject."""

from tests.laws import branch, commit, generate, purity, row

ALL = tuple(module.LAW for module in (row, commit, purity, branch, generate))
