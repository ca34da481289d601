"""The five functions, the drafters, and their composition to steps."""
