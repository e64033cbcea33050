#!/bin/sh
# The role that workers log in with. PostgreSQL's image executes this once, when it creates the database. A coordinator grants the role its
# rights when it starts: to take rollouts and to add results, not to read rewards or rollouts.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\set password `cat "$WORKER_PASSWORD_FILE"`
CREATE ROLE trainyard_worker LOGIN PASSWORD :'password';
SQL
