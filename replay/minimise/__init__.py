"""From a dump to the smallest run that shows the same failure."""
