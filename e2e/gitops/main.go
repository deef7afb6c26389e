// Gitops does to a cluster what GitOps tools do, with their own packages: it applies manifests the way Flux's
// kustomize-controller does, and computes the status of objects the way kstatus does. Results are JSON on standard output.
//
//	gitops apply  -kubeconfig FILE -f FILE [-namespace NAME]
//	gitops status -kubeconfig FILE KIND/NAMESPACE/NAME...
//	gitops status -f FILE                                    (no cluster: the objects as the file has them)
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// errUsage marks what the caller did wrong, as against what the cluster refused: exit code 2, not 1.
var errUsage = errors.New("usage: gitops apply|status [flags]")

// options are the flags of both commands.
type options struct {
	kubeconfig string
	file       string
	namespace  string
	timeout    time.Duration
	subjects   []string
}

func main() {
	ctrllog.SetLogger(logr.Discard())
	result, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if errors.Is(err, errUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) (any, error) {
	if len(args) == 0 {
		return nil, errUsage
	}
	given, err := parse(args[0], args[1:])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), given.timeout)
	defer cancel()
	switch {
	case args[0] == "apply" && given.file != "" && len(given.subjects) == 0:
		return apply(ctx, given)
	case args[0] == "status" && given.file != "" && len(given.subjects) == 0:
		return statusOfFile(given)
	case args[0] == "status" && given.file == "" && len(given.subjects) > 0:
		return statusOfSubjects(ctx, given)
	}
	return nil, errUsage
}

func parse(command string, args []string) (*options, error) {
	given := &options{}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.StringVar(&given.kubeconfig, "kubeconfig", "", "the cluster to talk to; there is no default, so that none is hit by mistake")
	flags.StringVar(&given.file, "f", "", "a file of manifests; - is standard input")
	flags.StringVar(&given.namespace, "namespace", "default", "where namespaced objects go that name no namespace")
	flags.DurationVar(&given.timeout, "timeout", time.Minute, "when to give up")
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	given.subjects = flags.Args()
	return given, nil
}

// connect reads the kubeconfig that was named.
func (given *options) connect() (*rest.Config, error) {
	if given.kubeconfig == "" {
		return nil, fmt.Errorf("%w: -kubeconfig is missing", errUsage)
	}
	config, err := clientcmd.BuildConfigFromFlags("", given.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", given.kubeconfig, err)
	}
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// objects reads the manifests of the file.
func (given *options) objects() ([]*unstructured.Unstructured, error) {
	content, err := read(given.file)
	if err != nil {
		return nil, err
	}
	found, err := ssautil.ReadObjects(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", given.file, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s holds no Kubernetes object", given.file)
	}
	return found, nil
}

func read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}
