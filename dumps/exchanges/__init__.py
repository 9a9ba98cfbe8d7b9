"""HTTP exchanges of a dump: when two requests are the same request, and in what they differ.

Used on both sides: a recording counts equal requests of a task, a replay finds the recorded answer.
"""
