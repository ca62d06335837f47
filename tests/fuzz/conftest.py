import pytest

from tests.fuzz.fuzzing import write_count


def pytest_sessionfinish(session: pytest.Session) -> None:
    write_count()
