"""The KV block pool: who holds which block, and which computed prefixes can be found again.

Every block is in exactly one of three states: free (holds nothing), referenced (held by one or more choices), or
idle-cached (held by nobody, but its content is known by hash and can be revived). Block ids run from 1 to num_blocks;
id 0 is the null block of the cache tensors and is never handed out, so it appears in no count here.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from weir.engine.tenants import Tenants


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` KV slots: ceil(n / block_size). The only place where this is computed."""
    return -(-num_tokens // block_size)


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free or idle; nothing was taken."""


class BlockHasher:
    """Chained hashes of full blocks: a hash names a block's tokens and everything before them.

    Keyed by a secret of this process, so that nobody can craft a collision, and rooted in the tenant's part of the
    cache and in the cache salt, so that requests of different parts or salts never share a block.
    """

    def __init__(
        self, block_size: int, model: str = "", key: bytes | None = None, tenants: Tenants | None = None
    ) -> None:
        self._block_size = block_size
        self._model = model.encode()
        self._key = secrets.token_bytes(32) if key is None else key
        self._tenants = tenants or Tenants()

    def extend(self, hashes: list[bytes], tokens: Sequence[int], tenant: str, cache_salt: str, num_blocks: int) -> None:
        """Append the hashes of blocks len(hashes)..num_blocks of `tokens` to `hashes`, in place."""
        for index in range(len(hashes), num_blocks):
            previous = hashes[index - 1] if index else self._root(tenant, cache_salt)
            block = array("q", tokens[index * self._block_size : (index + 1) * self._block_size])
            hashes.append(self._digest(previous, block.tobytes()))

    def _root(self, tenant: str, cache_salt: str) -> bytes:
        names = (self._model, *(_bytes(name) for name in (self._tenants.cache_part(tenant), cache_salt)))
        # With their lengths, so that no two triples of names come to the same bytes.
        return self._digest(b"", b"".join(len(name).to_bytes(4, "little") + name for name in names))

    def _digest(self, previous: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(previous + content, digest_size=16, key=self._key).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class BlockPool:
    """Owns `num_blocks` KV blocks. Not thread-safe: one engine thread uses it."""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._free: deque[int] = deque(range(1, num_blocks + 1))
        self._refs = [0] * (num_blocks + 1)
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._shared: set[int] = set()  # blocks with more than one holder

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds but whose content could be revived."""
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now: free ones and idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_referenced(self) -> int:
        """Blocks held by at least one choice."""
        return self.num_blocks - self.num_available

    @property
    def shared(self) -> set[int]:
        """Blocks held by more than one choice; not to be changed."""
        return self._shared

    def refs(self, block: int) -> int:
        """How many choices hold `block`."""
        return self._refs[block]

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The longest run of blocks, from the first hash on, whose content is known. Changes nothing."""
        found: list[int] = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        """Take a further reference on blocks found by `find` or held by a sibling; idle ones are revived."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._idle[block]
            elif self._refs[block] == 1:
                self._shared.add(block)
            self._refs[block] += 1

    def take(self, count: int) -> list[int]:
        """Take `count` blocks with no content, evicting idle ones from the oldest. Raises OutOfBlocksError, whole."""
        if count > self.num_available:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_available} of {self.num_blocks} available")
        taken = []
        for _ in range(count):
            block = self._free.popleft() if self._free else self._evict()
            self._refs[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference back on each block. The tail goes first, so that it is also evicted first."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 1:
                self._shared.discard(block)
            elif self._refs[block] == 0:
                if block in self._hash_of:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Make a full, computed block findable. A second block with the same content stays private."""
        if self.prefix_cache and digest not in self._block_of and block not in self._hash_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def flush(self) -> int:
        """Forget all cached content; idle blocks become free. Returns how many. Held blocks stay with their holders."""
        flushed = len(self._idle)
        self._free.extend(self._idle)
        self._idle.clear()
        self._block_of.clear()
        self._hash_of.clear()
        return flushed

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def check(self) -> None:
        """Assert free + referenced + idle = total and that the hash maps agree. Linear in the pool: for tests."""
        referenced = [b for b in range(1, self.num_blocks + 1) if self._refs[b] > 0]
        assert min(self._refs) >= 0, "negative reference count"
        assert self._refs[0] == 0, "the null block was handed out"
        states = sorted([*self._free, *self._idle, *referenced])
        assert states == list(range(1, self.num_blocks + 1)), "a block is lost or in two states"
        assert self._shared == {b for b, refs in enumerate(self._refs) if refs > 1}, "shared blocks drifted"
        assert {d: b for b, d in self._hash_of.items()} == self._block_of, "hash maps disagree"
        assert all(b in self._hash_of for b in self._idle), "an idle block has no known content"
