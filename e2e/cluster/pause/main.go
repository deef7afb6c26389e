// Pause holds a pod's namespaces open: it waits until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first process of a shared process namespace is the parent of orphans; ignoring SIGCHLD lets the kernel reap them.
	signal.Ignore(syscall.SIGCHLD)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
