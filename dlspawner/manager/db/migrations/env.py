"""Alembic's entry: runs migrations on the connection that `dlspawner.manager.db.engine` holds, in its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
