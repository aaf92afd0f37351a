/** The end of a process as an `AbortSignal`. */

/** A signal that is aborted by SIGTERM and SIGINT. A second one of them ends the process, as without this. */
export function onTerminate(): AbortSignal {
  const abort = new AbortController();
  const stop = (): void => {
    process.off("SIGTERM", stop);
    process.off("SIGINT", stop);
    abort.abort();
  };
  process.on("SIGTERM", stop);
  process.on("SIGINT", stop);
  return abort.signal;
}
