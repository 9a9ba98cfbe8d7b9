"""A failing run as something that can be changed and run again, on our own live scheduler and block pool."""
