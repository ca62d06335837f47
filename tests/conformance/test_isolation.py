import sys

import pytest

from commandbus.testing.conformance.isolation import IsolationSuite

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a worker refuses such handlers there")


class TestIsolation(IsolationSuite):
    pass
