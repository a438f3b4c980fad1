"""poetc's own solver, an engine with a folder for each job."""

from poetc.solvers.poetc.engine import INFO, solve
