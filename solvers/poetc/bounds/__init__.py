"""Lower bounds on the cost and on the RAM of schedules."""
