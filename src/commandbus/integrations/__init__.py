"""Where other frameworks meet the bus: pytest, FastAPI and Starlette, Django, SQLAlchemy, Celery."""
