"""The block pool: states of a block, references, and what the prefix cache may find."""

from __future__ import annotations

import pytest
from weir.engine.blocks import BlockHasher, BlockPool, OutOfBlocksError, blocks_for
from weir.engine.tenants import Tenant, Tenants


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def hashes(tokens: range, salt: str = "", hasher: BlockHasher | None = None, tenant: str = "") -> list[bytes]:
    found: list[bytes] = []
    (hasher or BlockHasher(4, key=b"k")).extend(found, list(tokens), tenant, salt, len(tokens) // 4)
    return found


def test_taking_more_than_there_is_takes_nothing() -> None:
    pool = BlockPool(3, 4)
    pool.take(2)
    with pytest.raises(OutOfBlocksError, match="2 blocks wanted, 1 of 3 available"):
        pool.take(2)
    assert pool.num_available == 1
    pool.check()


def test_the_null_block_is_never_handed_out() -> None:
    assert sorted(BlockPool(3, 4).take(3)) == [1, 2, 3]


def test_a_released_block_with_known_content_can_be_revived() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.take(1)
    (digest,) = hashes(range(4))
    pool.publish(block, digest)
    pool.release([block])
    assert (pool.num_free, pool.num_idle, pool.num_referenced) == (1, 1, 0)
    assert pool.find([digest]) == [block]
    pool.hold([block])
    assert (pool.num_free, pool.num_idle, pool.num_referenced) == (1, 0, 1)
    pool.check()


def test_an_unpublished_block_is_never_found() -> None:
    pool = BlockPool(2, 4)
    pool.take(1)
    assert pool.find(hashes(range(4))) == []


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.take(3)
    digests = hashes(range(12))
    for block, digest in zip(blocks, digests, strict=True):
        pool.publish(block, digest)
    pool.release(blocks)
    pool.take(1)
    assert pool.find(digests) == blocks[:2]
    pool.check()


def test_finding_changes_nothing() -> None:
    pool = BlockPool(2, 4)
    first, second = pool.take(2)
    old, new = hashes(range(4))[0], hashes(range(100, 104))[0]
    pool.publish(first, old)
    pool.publish(second, new)
    pool.release([first])
    pool.release([second])
    pool.find([old])
    pool.take(1)
    assert pool.find([old]) == []  # still the least recently used, looking did not touch it
    assert pool.find([new]) == [second]


def test_a_block_held_twice_is_free_only_after_both_let_go() -> None:
    pool = BlockPool(1, 4)
    blocks = pool.take(1)
    pool.hold(blocks)
    assert len(pool.shared) == 1
    pool.release(blocks)
    assert (pool.num_available, len(pool.shared)) == (0, 0)
    pool.release(blocks)
    assert pool.num_available == 1
    pool.check()


def test_the_same_content_computed_twice_stays_with_the_first_block() -> None:
    pool = BlockPool(2, 4)
    first, second = pool.take(2)
    (digest,) = hashes(range(4))
    pool.publish(first, digest)
    pool.publish(second, digest)
    pool.release([second])
    assert pool.num_free == 1  # the duplicate has no name, so it is simply free
    assert pool.find([digest]) == [first]
    pool.check()


def test_flush_frees_idle_blocks_and_leaves_held_ones_alone() -> None:
    pool = BlockPool(2, 4)
    held, idle = pool.take(2)
    digests = [hashes(range(4))[0], hashes(range(50, 54))[0]]
    pool.publish(held, digests[0])
    pool.publish(idle, digests[1])
    pool.release([idle])
    assert pool.flush() == 1
    assert pool.find(digests) == []
    assert pool.num_referenced == 1
    pool.release([held])
    assert pool.num_free == 2
    pool.check()


def test_without_prefix_cache_nothing_is_ever_found() -> None:
    pool = BlockPool(1, 4, prefix_cache=False)
    (block,) = pool.take(1)
    (digest,) = hashes(range(4))
    pool.publish(block, digest)
    assert pool.find([digest]) == []


def test_a_hash_names_the_block_and_everything_before_it() -> None:
    same_tail_other_head = [*range(100, 104), *range(4, 8)]
    other: list[bytes] = []
    BlockHasher(4, key=b"k").extend(other, same_tail_other_head, "", "", 2)
    assert hashes(range(8))[1] != other[1]


def test_hashes_differ_by_salt_by_model_and_by_process() -> None:
    plain = hashes(range(4))
    assert plain == hashes(range(4))
    assert plain != hashes(range(4), salt="tenant a")
    assert plain != hashes(range(4), hasher=BlockHasher(4, "other model", key=b"k"))
    assert hashes(range(4), hasher=BlockHasher(4)) != hashes(range(4), hasher=BlockHasher(4))


def test_each_configured_tenant_has_its_own_hashes_and_all_others_those_of_default() -> None:
    hasher = BlockHasher(4, key=b"k", tenants=Tenants([Tenant("gold"), Tenant("batch")]))
    by_tenant = {
        name: hashes(range(4), hasher=hasher, tenant=name)[0] for name in ("gold", "batch", "", "default", "x")
    }
    assert by_tenant[""] == by_tenant["default"] == by_tenant["x"]
    assert len(set(by_tenant.values())) == 3


def test_tenants_that_share_the_cache_and_those_that_are_not_configured_have_the_same_hashes() -> None:
    sharing = BlockHasher(4, key=b"k", tenants=Tenants([Tenant("gold")], shares_cache=True))
    for hasher in (sharing, BlockHasher(4, key=b"k")):
        assert hashes(range(4), hasher=hasher, tenant="gold") == hashes(range(4), hasher=hasher)


def test_no_salt_reaches_the_part_of_another_tenant() -> None:
    """Names are hashed with their lengths: what ends one cannot be moved to the beginning of the next."""
    hasher = BlockHasher(4, "m", key=b"k", tenants=Tenants([Tenant("gold"), Tenant("g"), Tenant("goldx")]))
    pairs = [("gold", ""), ("g", "old"), ("goldx", ""), ("gold", "x"), ("", "gold"), ("", ""), ("", "default")]
    pairs += [("g", "\x03\x00\x00\x00old"), ("gold", "\0")]
    assert len({hashes(range(4), salt, hasher, tenant)[0] for tenant, salt in pairs}) == len(pairs)


def test_token_ids_that_agree_in_their_low_byte_have_different_hashes() -> None:
    assert hashes(range(65, 69)) != hashes(range(65 + 256, 69 + 256))
