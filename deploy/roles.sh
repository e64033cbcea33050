#!/bin/sh
# The roles that the coordinator and workers log in with. PostgreSQL's image executes this once, when it creates the database. The coordinator's
# owns the database and is no superuser. It grants the workers' role its rights when it starts: to take rollouts and to add results, not to read
# rewards or rollouts.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\set owner `cat "$DATABASE_PASSWORD_FILE"`
\set worker `cat "$WORKER_PASSWORD_FILE"`
CREATE ROLE trainyard LOGIN PASSWORD :'owner';
ALTER DATABASE :"DBNAME" OWNER TO trainyard;
CREATE ROLE trainyard_worker LOGIN PASSWORD :'worker';
SQL
