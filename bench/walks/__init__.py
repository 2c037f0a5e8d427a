"""Events, requests and tasks that walk over all partitions, and their cost with very many of them."""
