"""Who owns which field of an object: managedFields, and what server-side apply does with them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Tree = dict[str, Any]
Path = tuple[str, ...]

# Lists whose items are merged by a key; any other list is one value.
LIST_KEYS = {
    ("metadata", "ownerReferences"): "uid",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("status", "conditions"): "type",
}
# The API server's own, or the name of the object: nobody owns them.
UNOWNED = {
    ("apiVersion",),
    ("kind",),
    *(
        ("metadata", name)
        for name in ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
    ),
}


@dataclass(frozen=True)
class Manager:
    """The same name is another manager for another operation or another subresource."""

    name: str
    operation: str
    subresource: str = ""


Owned = dict[Manager, frozenset[Path]]


class ConflictError(Exception):
    """An apply without force would change what others own."""

    def __init__(self, conflicts: list[tuple[Manager, Path]]) -> None:
        found = "; ".join(f'conflict with "{manager.name}": .{".".join(path)}' for manager, path in conflicts)
        super().__init__(f"Apply failed with {len(conflicts)} conflict{'s' * (len(conflicts) > 1)}: {found}")


def leaves(tree: Tree) -> dict[Path, Any]:
    """Every value that can have an owner. An item of a keyed list is a step like `[type=Ready]`."""
    return _leaves(_fold(tree))


def apply(live: Tree, owned: Owned, config: Tree, manager: Manager, force: bool) -> tuple[Tree, Owned]:
    """Server-side apply: `live` and its owners afterwards. Raises ConflictError, and then nothing changed."""
    wanted, there = leaves(config), leaves(live)
    disputed = [
        (other, path)
        for other, paths in owned.items()
        for path in sorted(paths)
        if other != manager and path in wanted and there.get(path) != wanted[path]
    ]
    if disputed and not force:
        raise ConflictError(disputed)
    owners = {other: paths for other, paths in owned.items() if other != manager}
    for other, path in disputed:
        owners[other] -= {path}
    held = {path for paths in owners.values() for path in paths}
    after = _fold(live)
    for path in owned.get(manager, frozenset()) - wanted.keys() - held:
        _remove(after, path)
    for path, value in wanted.items():
        _set(after, path, value)
    owners[manager] = frozenset(wanted)
    return _unfold(after), {other: paths for other, paths in owners.items() if paths}


def update(before: Tree, after: Tree, owned: Owned, manager: Manager) -> Owned:
    """Any other write: whoever changes a field owns it, alone."""
    old, new = leaves(before), leaves(after)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    owners = {other: paths - changed - (old.keys() - new.keys()) for other, paths in owned.items()}
    owners[manager] = owners.get(manager, frozenset()) | frozenset(changed)
    return {other: paths for other, paths in owners.items() if paths}


def managed_fields(owned: Owned) -> list[Tree]:
    """As `metadata.managedFields` shows it."""
    entries = []
    for manager, paths in owned.items():
        fields: Tree = {}
        for path in sorted(paths):
            node = fields
            for step in path:
                key, _, value = step.strip("[]").partition("=")
                node = node.setdefault(f'k:{{"{key}":"{value}"}}' if step.startswith("[") else f"f:{step}", {})
        entry = {"manager": manager.name, "operation": manager.operation, "apiVersion": "v1"}
        entry |= {"subresource": manager.subresource} if manager.subresource else {}
        entries.append(entry | {"fieldsType": "FieldsV1", "fieldsV1": fields})
    return entries


def _fold(tree: Tree, at: Path = ()) -> Tree:
    """A deep copy in which keyed lists are dicts."""
    folded: Tree = {}
    for name, value in tree.items():
        path = (*at, name)
        if path in LIST_KEYS:
            key = LIST_KEYS[path]
            folded[name] = {f"[{key}={item[key]}]": _fold(item, (*path, "[]")) for item in value}
        else:
            folded[name] = _fold(value, path) if isinstance(value, dict) else copy.deepcopy(value)
    return folded


def _unfold(folded: Tree, at: Path = ()) -> Tree:
    tree: Tree = {}
    for name, value in folded.items():
        path = (*at, name)
        if path in LIST_KEYS:
            tree[name] = [_unfold(item, (*path, "[]")) for item in value.values()]
        else:
            tree[name] = _unfold(value, path) if isinstance(value, dict) else value
    return tree


def _leaves(folded: Tree, at: Path = ()) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for name, value in folded.items():
        path = (*at, name)
        if path in UNOWNED:
            continue
        found |= _leaves(value, path) if isinstance(value, dict) else {path: value}
    return found


def _set(folded: Tree, path: Path, value: Any) -> None:
    node = folded
    for step in path[:-1]:
        node = node.setdefault(step, {})
    node[path[-1]] = copy.deepcopy(value)


def _remove(folded: Tree, path: Path) -> None:
    """Without the value, and without what is empty then."""
    step, *rest = path
    if step not in folded:
        return
    if rest:
        _remove(folded[step], tuple(rest))
    if not rest or folded[step] == {}:
        del folded[step]
