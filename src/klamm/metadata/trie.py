"""An immutable map: a changed copy costs the size of the change, not of the map.

A node is a dict while it is small and a tuple of 32 nodes once it is not. A copy with one changed key rebuilds the
nodes on the way to that key and shares all others. Keys are hashed by value and not by Python's seeded `hash`, so
that two processes walk a map in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID
from zlib import crc32

K = TypeVar("K", str, int, UUID)
V = TypeVar("V")

_BITS: Final = 5
_WIDTH: Final = 1 << _BITS
_MASK: Final = _WIDTH - 1
_LEAF_LIMIT: Final = 32
_COLLAPSE_LIMIT: Final = 8
_HASH_BITS: Final = 32

_Node: TypeAlias = "dict[Any, Any] | tuple[_Node, ...]"
_Changes: TypeAlias = list[tuple[int, Any, Any]]


def stable_hash(key: str | int | UUID) -> int:
    """32 bits of `key`, the same in every process."""
    if isinstance(key, str):
        return crc32(key.encode())
    if isinstance(key, UUID):
        return key.int & 0xFFFFFFFF
    return key & 0xFFFFFFFF


class TrieMap(Generic[K, V]):
    """Values are never None: in `with_changes` None removes the key."""

    __slots__ = ("_root", "_size")

    def __init__(self, items: Mapping[K, V] | None = None, *, root: _Node | None = None, size: int = 0) -> None:
        """`root` and `size` are those of a tree that `with_changes` made."""
        self._root: _Node = {} if root is None else root
        self._size = size
        if items:
            self._root, self._size = _evolve({}, [(stable_hash(k), k, v) for k, v in items.items()], 0)

    def get(self, key: K) -> V | None:
        node = self._root
        if type(node) is not dict:
            remaining = stable_hash(key)
            while type(node) is tuple:
                node = node[remaining & _MASK]
                remaining >>= _BITS
        assert type(node) is dict
        return node.get(key)

    def with_changes(self, changes: Mapping[K, V | None]) -> TrieMap[K, V]:
        if not changes:
            return self
        listed = [(stable_hash(key), key, value) for key, value in changes.items()]
        root, growth = _evolve(self._root, listed, 0)
        return TrieMap(root=root, size=self._size + growth)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for leaf in _leaves(self._root):
            yield from leaf

    def items(self) -> Iterator[tuple[K, V]]:
        for leaf in _leaves(self._root):
            yield from leaf.items()

    def values(self) -> Iterator[V]:
        for leaf in _leaves(self._root):
            yield from leaf.values()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TrieMap):
            return NotImplemented
        return self is other or (len(self) == len(other) and dict(self.items()) == dict(other.items()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TrieMap({dict(self.items())!r})"


def _leaves(node: _Node) -> Iterator[dict[Any, Any]]:
    if type(node) is tuple:
        for child in node:
            yield from _leaves(child)
    else:
        assert type(node) is dict
        yield node


def _evolve(node: _Node, changes: _Changes, depth_bits: int) -> tuple[_Node, int]:
    """Return the node with `changes` applied, and the growth in keys."""
    if type(node) is tuple:
        return _evolve_branch(node, changes, depth_bits)
    assert type(node) is dict
    leaf = dict(node)
    for _, key, value in changes:
        if value is None:
            leaf.pop(key, None)
        else:
            leaf[key] = value
    growth = len(leaf) - len(node)
    if len(leaf) > _LEAF_LIMIT and depth_bits < _HASH_BITS:
        return _split(leaf, depth_bits), growth
    return leaf, growth


def _evolve_branch(branch: tuple[_Node, ...], changes: _Changes, depth_bits: int) -> tuple[_Node, int]:
    children = list(branch)
    total = 0
    for index, group in _grouped(changes, depth_bits).items():
        children[index], growth = _evolve(children[index], group, depth_bits + _BITS)
        total += growth
    if total < 0 and all(type(child) is dict for child in children):
        kept = {key: value for child in children for key, value in child.items()}  # type: ignore[union-attr]
        if len(kept) <= _COLLAPSE_LIMIT:
            return kept, total
    return tuple(children), total


def _grouped(changes: _Changes, depth_bits: int) -> dict[int, _Changes]:
    if len(changes) == 1:
        return {(changes[0][0] >> depth_bits) & _MASK: changes}
    groups: dict[int, _Changes] = {}
    for change in changes:
        groups.setdefault((change[0] >> depth_bits) & _MASK, []).append(change)
    return groups


def _split(leaf: dict[Any, Any], depth_bits: int) -> _Node:
    children: list[dict[Any, Any]] = [{} for _ in range(_WIDTH)]
    for key, value in leaf.items():
        children[(stable_hash(key) >> depth_bits) & _MASK][key] = value
    deeper = depth_bits + _BITS
    can_split = deeper < _HASH_BITS
    return tuple(_split(child, deeper) if can_split and len(child) > _LEAF_LIMIT else child for child in children)
