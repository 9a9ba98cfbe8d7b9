"""How each golden incident is made to happen: a file for each kind of load. `tests.capture` runs them."""
