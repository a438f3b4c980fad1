"""Orders of first executions: which one to solve the problem under."""
