"""What is measured: each module has a class `Scenario` with a name, and `run`, which measures one round of it."""
