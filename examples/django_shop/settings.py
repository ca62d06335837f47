"""Settings: one database for the models and the tasks."""

from pathlib import Path

SECRET_KEY = "only for the example"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "commandbus.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path.cwd() / "django_shop.db",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE"
        },  # a transaction waits for the write lock at its start
        "TEST": {"NAME": "test_django_shop.db"},  # the bus needs a file in tests, too
    }
}
TASKS = {
    "default": {
        "BACKEND": "commandbus.integrations.django.backend.CommandBusBackend",
        "OPTIONS": {"DATABASE": "default", "TRANSACTIONAL": True},
    }
}
