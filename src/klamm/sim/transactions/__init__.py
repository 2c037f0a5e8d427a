"""Transactions in level 2: clients, faults and checkers."""
