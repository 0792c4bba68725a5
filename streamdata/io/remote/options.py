"""`storage_options` of a source or a recipe: where a store is, and as whom it is read. Keys are not among them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.named_source import default_of


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Settings of a store; what is None follows from the environment.

    They travel with the shards to the processes that read. They are in no state, sample, index or message: the identity
    of an object is its bucket and key.

    Args:
        endpoint: Url of the store's API.
        region: Of the bucket.
        anonymous: Whether requests are not signed.
        profile: Of the store's configuration files; its keys are taken.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool | None = None
    profile: str | None = None

    def __repr__(self) -> str:
        return "StorageOptions(…)"

    def over(self, other: "StorageOptions") -> "StorageOptions":
        """These, and where they say nothing the other ones."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other, **said)


NO_OPTIONS = StorageOptions()
_NAMES = tuple(field.name for field in fields(StorageOptions))
_OURS = "Keys come from the environment, a profile or a role; these are taken: " + ", ".join(_NAMES) + "."


def options_of_source(value: Any, who: str) -> StorageOptions:
    """The options of a source: its own, and those of the mixtures above where it says nothing.

    Raises:
        ValueError: As `checked_options` has it.
    """
    return checked_options(value, who).over(checked_options(default_of("storage_options"), who))


def checked_options(value: Any, who: str) -> StorageOptions:
    """The options that a recipe gives; None for none. What it gives is not repeated in errors: it may be a secret.

    Raises:
        ValueError: It is not a mapping, has other names, or values of other types.
    """
    if isinstance(value, StorageOptions):
        return value
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{who}: storage_options: expected a mapping, got {type(value).__name__}\n  {_OURS}")
    given = dict(value or {})
    for name, setting in given.items():
        if name not in _NAMES:
            hint = did_you_mean(str(name), _NAMES)
            raise ValueError(f"{who}: storage_options: expected known names, got {shown(name)}{hint}\n  {_OURS}")
        kind = bool if name == "anonymous" else str
        if setting is not None and not isinstance(setting, kind):
            raise ValueError(
                f"{who}: storage_options: {name}: expected {'true or false' if kind is bool else 'a text'}, "
                f"got {type(setting).__name__}\n  Write it as such, or leave it out."
            )
    endpoint = given.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"{who}: storage_options: endpoint: expected a url of http or https\n  Begin it with https://."
        )
    return StorageOptions(**given)
