"""TLS: keystores and truststores, contexts for both sides, principals from certificates."""
