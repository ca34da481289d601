"""Pure forward functions of `(params, x, …)` and the records of their parameters."""
