/**
 * A thread of a child process that ends the process group when the parent is gone, however the parent ended and whatever the
 * user's code is doing: the main thread may be in a loop that never returns to its event loop, this thread is not.
 *
 * The parent never writes to the pipe; the kernel closes it when the parent dies.
 */
import { Socket } from 'node:net';
import { endOwnGroup } from './process-group.ts';
import { PARENT_PIPE_FD } from './protocol.ts';

const pipe = new Socket({ fd: PARENT_PIPE_FD, readable: true, writable: false });
pipe.on('close', endOwnGroup);
pipe.on('error', endOwnGroup);
pipe.resume();
