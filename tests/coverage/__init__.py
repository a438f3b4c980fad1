"""`make coverage`: which branches of poetc and of its runtime the tests take."""
