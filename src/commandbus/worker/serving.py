"""The domains that a worker serves, and the handlers of one or several registries."""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.domain.counts import as_items
from commandbus.domain.names import as_name
from commandbus.errors import ConfigurationError
from commandbus.worker.handlers import HandlerRegistry


def check_domains(domain: str | Iterable[str]) -> tuple[str, ...]:
    names = (domain,) if isinstance(domain, str) else tuple(as_items(domain, "domain"))
    if not names:
        raise ConfigurationError("A worker needs at least one domain.")
    return tuple(dict.fromkeys(as_name(name, "domain") for name in names))


def what_to_serve(
    domain: str | Iterable[str] | HandlerRegistry, registries: Iterable[HandlerRegistry | None]
) -> tuple[tuple[str, ...], HandlerRegistry]:
    """The domains and the handlers of a worker: of registries that know their domains, or of named
    domains and registries."""
    own = [domain] if isinstance(domain, HandlerRegistry) else []
    given = own + [one for one in registries if one is not None]
    for one in given:
        if not isinstance(one, HandlerRegistry):
            raise ConfigurationError(f"registry must be a HandlerRegistry, not {one!r}.")
    registry = HandlerRegistry.union(given) if given else HandlerRegistry()
    if not isinstance(domain, HandlerRegistry):
        return check_domains(domain), registry
    domains = tuple(dict.fromkeys(name for one in given for name in one.domains))
    if not domains:
        raise ConfigurationError(
            "The registry has no domain and no handlers: make it with one, as in "
            'HandlerRegistry("payments"), or name the domains before it.'
        )
    return domains, registry
