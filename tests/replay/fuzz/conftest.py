from tests.replay.fuzz.searches import here

__all__ = ["here"]
