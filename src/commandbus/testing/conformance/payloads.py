"""Payloads: data in is data out, and typed handlers get what they asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pytest

from commandbus.domain import payload
from commandbus.domain.command import Command
from commandbus.domain.lifecycle import PARKED
from commandbus.errors import ConfigurationError, PayloadError
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.handlers import HandlerRegistry

VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    0.1 + 0.2,
    5e-324,
    1.7976931348623157e308,
    -0.0,
    "",
    "naïve 漢字 🚀 \u2028 \x01\x7f \\u0000",
    "' \" ; drop table commandbus_command; -- <script>",
    [],
    {},
    [[], [{}], None],
    {"": 1, "a b": [1, 2.5, None, True, {"ü": "x"}]},
    {"z": 1, "a": 2, "m": 3},
    {"1": 1, "1.0": 2, "true": 3},
]


class Parcel(msgspec.Struct):
    article: int
    note: str = ""


@dataclass
class Address:
    street: str
    number: int


@dataclass
class Unsendable:
    impedance: complex


class Chain(msgspec.Struct):
    """A type that contains itself."""

    n: int
    rest: Chain | None = None


class Model:
    """As much of pydantic as the bus asks for, by duck typing."""

    def __init__(self, n: int) -> None:
        self.n = n

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        raw = msgspec.json.decode(text)
        if not isinstance(raw, dict) or not isinstance(raw.get("n"), int):
            raise ValueError("n is not a number")  # noqa: TRY004 - as pydantic does
        return cls(raw["n"])


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class PayloadsSuite:
    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    def test_data_comes_out_as_it_went_in(self, bus: Harness, value: Any) -> None:
        command_id = bus.send(DOMAIN, "ship", value)
        stored, taken = bus.get(command_id).data, bus.take(bus.worker()).command.data
        assert repr(stored) == repr(taken) == repr(value), "also the sign of zero and order of keys"

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    def test_results_come_out_as_they_went_in(self, bus: Harness, value: Any) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.complete, bus.take(worker), value)
        assert repr(bus.get(command_id).result) == repr(value)

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            (Parcel(7, "fragile"), {"article": 7, "note": "fragile"}),
            (Address("Hauptstraße", 5), {"street": "Hauptstraße", "number": 5}),
            (Model(3), {"n": 3}),
            ({"parcels": [Parcel(1)]}, {"parcels": [{"article": 1, "note": ""}]}),
            ((1, 2), [1, 2]),
        ],
    )
    def test_objects_are_sent_as_json(self, bus: Harness, sent: Any, kept: Any) -> None:
        assert bus.get(bus.send(DOMAIN, "ship", sent)).data == kept

    def test_objects_are_returned_as_json(self, bus: Harness) -> None:
        def ship(command: Command[Any], context: Any) -> Parcel:
            return Parcel(7)

        with bus.run_worker(registry_of(ship=ship)):
            assert bus.wait(bus.send()).result == {"article": 7, "note": ""}

    def test_a_handler_may_ask_for_a_struct(self, bus: Harness) -> None:
        got: list[Parcel] = []

        def ship(command: Command[Parcel], context: Any) -> None:
            got.append(command.data)

        with bus.run_worker(registry_of(ship=ship)):
            bus.wait(bus.send(DOMAIN, "ship", {"article": 7}))
        assert got == [Parcel(7)]

    def test_a_handler_may_ask_for_a_dataclass(self, bus: Harness) -> None:
        got: list[Address] = []

        async def ship(command: Command[Address], context: Any) -> None:
            got.append(command.data)

        with bus.run_worker(registry_of(ship=ship)):
            bus.wait(bus.send(DOMAIN, "ship", {"street": "Ring", "number": 1}))
        assert got == [Address("Ring", 1)]

    def test_a_handler_may_ask_for_a_model(self, bus: Harness) -> None:
        got: list[Any] = []

        def ship(command: Command[Model], context: Any) -> None:
            got.append(command.data)

        with bus.run_worker(registry_of(ship=ship)):
            bus.wait(bus.send(DOMAIN, "ship", {"n": 3}))
        assert [type(model) for model in got] == [Model]
        assert got[0].n == 3

    def test_a_handler_may_ask_for_plain_types(self, bus: Harness) -> None:
        got: list[set[int]] = []

        def ship(command: Command[set[int]], context: Any) -> None:
            got.append(command.data)

        with bus.run_worker(registry_of(ship=ship)):
            bus.wait(bus.send(DOMAIN, "ship", [3, 1, 3]))
        assert got == [{1, 3}]

    def test_a_handler_may_ask_for_a_type_that_contains_itself(self, bus: Harness) -> None:
        got: list[Chain] = []

        def ship(command: Command[Chain], context: Any) -> None:
            got.append(command.data)

        with bus.run_worker(registry_of(ship=ship)):
            bus.wait(bus.send(DOMAIN, "ship", Chain(1, Chain(2))))
        assert got == [Chain(1, Chain(2))]

    def test_a_command_taken_by_hand_is_decoded_for_its_handler(self, bus: Harness) -> None:
        def ship(command: Command[Parcel], context: Any) -> None: ...

        bus.send(DOMAIN, "ship", {"article": 7})
        taken = bus.take(bus.worker(registry=registry_of(ship=ship)))
        assert taken.command.data == Parcel(7)

    @pytest.mark.parametrize("data", [{"article": "seven"}, {}, None, [1]])
    def test_data_that_does_not_fit_parks_the_command(self, bus: Harness, data: Any) -> None:
        calls: list[Any] = []

        def ship(command: Command[Parcel], context: Any) -> None:
            calls.append(command)

        with bus.run_worker(registry_of(ship=ship)):
            record = bus.wait(bus.send(DOMAIN, "ship", data))
        assert (record.status, record.error_code, calls) == (PARKED, "UNDECODABLE", [])
        assert "Parcel" in str(record.error_message)

    def test_a_result_that_is_not_json_parks_the_command(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder(result=object()))):
            record = bus.wait(bus.send())
        assert (record.status, record.error_code) == (PARKED, "RESULT_NOT_JSON")

    def test_a_type_that_json_cannot_hold_is_refused_at_registration(self) -> None:
        def ship(command: Command[complex], context: Any) -> None: ...

        def count(command: Command[dict[str, list[Unsendable]]], context: Any) -> None: ...

        for function in (ship, count):
            with pytest.raises(ConfigurationError, match="complex"):
                HandlerRegistry().register(DOMAIN, "ship", function)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ({"a": [1, float("nan")]}, r"data\.a\[1\] is nan"),
            ({"a": float("inf")}, r"data\.a is inf"),
            ({"a": "x\0y"}, r"data\.a contains a NUL"),
            ({"a\0": 1}, "NUL"),
            (["\ud800"], r"data\[0\] contains a lone surrogate"),
            ({"\udfff": 1}, "lone surrogate"),
            ({7: 1}, "key 7 of type int"),
            ({"a": {None: 1}}, r"data\.a has the key None"),
            ({"a": 2**64}, "beyond 64 bits"),
            ({"a": -(2**63) - 1}, "beyond 64 bits"),
            ({"a": object()}, "object"),
            ("x" * 300 * 1024, "more than the limit of 262,144"),
            (nested(65), "deeper than 64"),
        ],
        ids=lambda value: repr(value)[:16],
    )
    def test_what_cannot_be_kept_is_refused_by_its_path(
        self, bus: Harness, value: Any, says: str
    ) -> None:
        with pytest.raises(PayloadError, match=says):
            bus.send(DOMAIN, "ship", value)
        assert bus.stats().depth == 0

    def test_what_just_fits_is_accepted(self, bus: Harness) -> None:
        largest = "x" * (payload.PAYLOAD_BYTES_MAX - 2)
        assert bus.get(bus.send(DOMAIN, "ship", largest)).data == largest
        assert bus.get(bus.send(DOMAIN, "ship", nested(64))).data == nested(64)

    def test_the_limit_is_a_setting(self, open_bus: OpenBus) -> None:
        bus = open_bus(payload_bytes_max=10)
        assert bus.get(bus.send(DOMAIN, "ship", "12345678")).data == "12345678"
        with pytest.raises(PayloadError, match="11 bytes"):
            bus.send(DOMAIN, "ship", "123456789")

    def test_headers_have_a_limit_of_their_own(self, bus: Harness) -> None:
        with pytest.raises(PayloadError, match="headers"):
            bus.send(headers={"a": "x" * 9_000})
        with pytest.raises(PayloadError, match="headers"):
            bus.send(headers={"a": float("nan")})
        assert bus.stats().depth == 0

    def test_a_list_that_changes_after_the_send_changes_nothing(self, bus: Harness) -> None:
        data = [1]
        command_id = bus.send(DOMAIN, "ship", data)
        data.append(2)
        assert bus.get(command_id).data == [1]
