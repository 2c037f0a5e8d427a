"""Access control lists: bindings, the rules made of them, and the decision whether an operation is allowed."""
