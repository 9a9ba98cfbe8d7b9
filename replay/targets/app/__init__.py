"""Target app: the recorded program itself runs again, in the world that was recorded around it."""
