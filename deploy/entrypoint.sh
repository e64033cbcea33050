#!/bin/sh
# `trainyard` with the database's password from a file, so that neither the image nor the arguments of a process hold it.
set -eu
if [ -n "${PGPASSWORD_FILE:-}" ]; then
  PGPASSWORD=$(cat "$PGPASSWORD_FILE")
  export PGPASSWORD
fi
exec "${TRAINYARD:-/app/node_modules/.bin/trainyard}" "$@"
