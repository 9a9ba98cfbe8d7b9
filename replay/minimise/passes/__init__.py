"""One way each of making a scenario smaller. A pass depends on the scenario that it begins with and on nothing else."""
