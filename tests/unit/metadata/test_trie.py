from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from klamm.metadata.trie import TrieMap, stable_hash

KEYS = st.integers(0, 2000)
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers()), max_size=200)


@given(st.lists(CHANGES, max_size=6))
def test_it_behaves_as_a_dict_that_is_copied(rounds: list[dict[int, int | None]]) -> None:
    model: dict[int, int] = {}
    trie: TrieMap[int, int] = TrieMap()
    for changes in rounds:
        before, before_items = trie, dict(model)
        trie = trie.with_changes(changes)
        for key, value in changes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        assert dict(trie.items()) == model
        assert len(trie) == len(model)
        assert sorted(trie) == sorted(model)
        assert all(trie.get(key) == model.get(key) for key in range(2001))
        assert dict(before.items()) == before_items


def test_a_change_shares_all_other_nodes() -> None:
    trie: TrieMap[str, int] = TrieMap({f"topic-{i}": i for i in range(10_000)})
    changed = trie.with_changes({"topic-7": -1})
    assert isinstance(trie._root, tuple) and isinstance(changed._root, tuple)
    different = [i for i, child in enumerate(changed._root) if child is not trie._root[i]]
    assert different == [stable_hash("topic-7") & 31]


def test_keys_with_the_same_hash_live_side_by_side() -> None:
    keys = [UUID(int=i << 32) for i in range(100)]
    trie: TrieMap[UUID, int] = TrieMap({key: i for i, key in enumerate(keys)})
    assert len({stable_hash(key) for key in keys}) == 1
    assert [trie.get(key) for key in keys] == list(range(100))
    emptied = trie.with_changes({key: None for key in keys})
    assert len(emptied) == 0 and list(emptied) == []


def test_a_map_that_shrinks_becomes_small_again() -> None:
    trie: TrieMap[int, int] = TrieMap({i: i for i in range(1000)})
    for i in range(3, 1000):
        trie = trie.with_changes({i: None})
    assert trie == TrieMap({0: 0, 1: 1, 2: 2})
    assert isinstance(trie._root, dict)


def test_order_does_not_depend_on_the_process() -> None:
    trie: TrieMap[str, int] = TrieMap({f"t{i}": i for i in range(100)})
    assert list(trie) == list(TrieMap({f"t{i}": i for i in range(100)}))
