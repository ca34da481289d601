"""The state pytrees and their only writers."""
