package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// verdict is what kstatus says of one object: InProgress, Failed, Current, Terminating, NotFound or Unknown, and why.
type verdict struct {
	Subject    string      `json:"subject"`
	Status     string      `json:"status"`
	Message    string      `json:"message"`
	Conditions []condition `json:"conditions,omitempty"`
}

// condition is one that kstatus derived (Reconciling or Stalled), not one that the object carries.
type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func statusOfFile(given *options) ([]verdict, error) {
	objects, err := given.objects()
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, 0, len(objects))
	for _, object := range objects {
		found, err := compute(object)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, *found)
	}
	return verdicts, nil
}

func statusOfSubjects(ctx context.Context, given *options) ([]verdict, error) {
	config, err := given.connect()
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(config))
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	kube, err := client.New(config, client.Options{Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	verdicts := make([]verdict, 0, len(given.subjects))
	for _, subject := range given.subjects {
		found, err := statusOfSubject(ctx, kube, mapper, subject)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", subject, err)
		}
		verdicts = append(verdicts, *found)
	}
	return verdicts, nil
}

func statusOfSubject(ctx context.Context, kube client.Client, mapper meta.RESTMapper, subject string) (*verdict, error) {
	words := strings.Split(subject, "/")
	if len(words) != 3 {
		return nil, fmt.Errorf("%w: want KIND/NAMESPACE/NAME, with an empty namespace for what has none", errUsage)
	}
	resource := schema.ParseGroupResource(strings.ToLower(words[0]))
	kind, err := mapper.KindFor(resource.WithVersion(""))
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	err = kube.Get(ctx, client.ObjectKey{Namespace: words[1], Name: words[2]}, object)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err != nil {
		return &verdict{Subject: kind.Kind + "/" + words[1] + "/" + words[2], Status: status.NotFoundStatus.String(), Message: err.Error()}, nil
	}
	return compute(object)
}

func compute(object *unstructured.Unstructured) (*verdict, error) {
	subject := ssautil.FmtUnstructured(object)
	result, err := status.Compute(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	found := &verdict{Subject: subject, Status: result.Status.String(), Message: result.Message}
	for _, derived := range result.Conditions {
		found.Conditions = append(found.Conditions, condition{
			Type:    derived.Type.String(),
			Status:  string(derived.Status),
			Reason:  derived.Reason,
			Message: derived.Message,
		})
	}
	return found, nil
}
