/** The least that a process can do with a message: send it back. What a grader pool costs is compared with this. */
process.on('message', (message) => process.send?.(message));
