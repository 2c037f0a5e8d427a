"""How long one frame holds the loop of a broker: `python -m bench.loop_holds`."""
