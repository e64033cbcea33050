-- Hands a database that belongs to a superuser over to the user "me", who then is the coordinator's. Run it as that superuser, in that
-- database, with psql and while nobody uses it: psql -d trainyard -v ON_ERROR_STOP=1 -f hand-over.sql
CREATE ROLE me LOGIN;
ALTER DATABASE trainyard OWNER TO me;
SELECT format('ALTER SCHEMA %I OWNER TO me', nspname) FROM pg_namespace WHERE nspname IN ('trainyard', 'trainyard_queue')
UNION ALL SELECT format('ALTER TABLE %s OWNER TO me', oid::regclass) FROM pg_class
  WHERE relnamespace::regnamespace::text IN ('trainyard', 'trainyard_queue') AND relkind IN ('r', 'p')
UNION ALL SELECT format('ALTER ROUTINE %s OWNER TO me', oid::regprocedure) FROM pg_proc
  WHERE pronamespace::regnamespace::text = 'trainyard_queue'
UNION ALL SELECT format('ALTER TYPE %s OWNER TO me', oid::regtype) FROM pg_type WHERE oid = to_regtype('trainyard_queue.job_state') \gexec
