"""The laws of fspec as properties, each with wrong versions that it must reject."""
