"""How Python runs: a machine that follows a script and writes down what happens."""
