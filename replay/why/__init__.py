"""Which setting of a failed run its failure needs: replays with one thing changed, and with two."""
