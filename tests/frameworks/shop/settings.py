"""Settings; the folder of the database may be given by SHOP_FOLDER."""

import os
import tempfile
from pathlib import Path

_own = tempfile.TemporaryDirectory(prefix="commandbus-shop-", ignore_cleanup_errors=True)
DATABASE = Path(os.environ.get("SHOP_FOLDER") or _own.name) / "shop.db"

SECRET_KEY = "for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["commandbus.integrations.django", "tests.frameworks.shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}}
TASKS = {
    "default": {
        "BACKEND": "commandbus.integrations.django.backend.CommandBusBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "DATABASE": "default",
            "RETRY": {"max_attempts": 2, "backoff_schedule": [0]},
            "REGISTRIES": ["tests.frameworks.shop.tasks.payments"],
        },
    }
}
