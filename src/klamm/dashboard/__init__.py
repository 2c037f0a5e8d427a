"""The viewer of the control plane: a web server for a live cluster, a control log in a file, or a simulated run."""
