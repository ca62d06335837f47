"""The behaviours that every engine has, in both runtimes, as a library of tests.

One module per concern, one suite class each. To run them against an engine of your own, give pytest a
`configuration` and a `runtime` fixture, and inherit the suites:

    # conftest.py
    import pytest
    from commandbus.testing import Configuration, FakeClock
    from commandbus.testing.conformance.fixtures import bus, open_bus  # noqa: F401

    @pytest.fixture(params=["asyncio", "threads"])
    def runtime(request):
        return request.param

    @pytest.fixture
    def configuration(tmp_path):
        return Configuration("mine", f"mine:///{tmp_path}/store", clock=FakeClock())

    # test_sending.py
    from commandbus.testing.conformance.sending import SendingSuite

    class TestSending(SendingSuite):
        pass

Each test gets a fresh, empty store. What an engine cannot do is skipped by its `capabilities`, and said
so in the report; nothing asks for an engine's name. Nothing sleeps to be right: tests wait for events,
and time passes when a test says so.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# Before any of them is imported, so that a failing assert shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
