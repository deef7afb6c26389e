package main

import (
	"context"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/normalize"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What kustomize-controller calls itself, and the Kustomization that it is taken to reconcile.
const (
	fieldOwner     = "kustomize-controller"
	ownerGroup     = "kustomize.toolkit.fluxcd.io"
	ownerName      = "stepfence"
	ownerNamespace = "flux-system"
)

// change says what became of one object: created, configured, unchanged or skipped.
type change struct {
	Subject string `json:"subject"`
	Action  string `json:"action"`
}

// apply applies the manifests as one reconciliation of a Kustomization does, custom resource definitions first.
func apply(ctx context.Context, given *options) ([]change, error) {
	config, err := given.connect()
	if err != nil {
		return nil, err
	}
	objects, err := given.objects()
	if err != nil {
		return nil, err
	}
	kube, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if err := fillNamespace(kube, objects, given.namespace); err != nil {
		return nil, err
	}
	poller := polling.NewStatusPoller(kube, kube.RESTMapper(), polling.Options{})
	manager := ssa.NewResourceManager(kube, poller, ssa.Owner{Field: fieldOwner, Group: ownerGroup})
	manager.SetOwnerLabels(objects, ownerName, ownerNamespace)
	if err := normalize.UnstructuredList(objects); err != nil {
		return nil, err
	}
	set, err := manager.ApplyAllStaged(ctx, objects, applyOptions())
	if err != nil {
		return nil, err
	}
	changes := make([]change, 0, len(set.Entries))
	for _, entry := range set.Entries {
		changes = append(changes, change{Subject: entry.Subject, Action: entry.Action.String()})
	}
	return changes, nil
}

// applyOptions are the options of kustomize-controller for a Kustomization with no settings of its own. The cleanup is what
// matters here: fields that kubectl manages become the controller's, so those that are not in the manifest are removed. The
// package compares the names of managers by prefix: kubectl-edit and kubectl-patch are taken over too.
func applyOptions() ssa.ApplyOptions {
	options := ssa.DefaultApplyOptions()
	options.ExclusionSelector = map[string]string{ownerGroup + "/reconcile": "disabled", ownerGroup + "/ssa": "Ignore"}
	options.IfNotPresentSelector = map[string]string{ownerGroup + "/ssa": "IfNotPresent"}
	options.ForceSelector = map[string]string{ownerGroup + "/force": "enabled"}
	options.Cleanup = ssa.ApplyCleanupOptions{
		Annotations: []string{
			corev1.LastAppliedConfigAnnotation,
			ownerGroup + "/checksum",
			"fluxcd.io/sync-checksum",
		},
		Labels: []string{"fluxcd.io/sync-gc-mark"},
		FieldManagers: []ssa.FieldManager{
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: fieldOwner, OperationType: metav1.ManagedFieldsOperationUpdate},
		},
		Exclusions: map[string]string{ownerGroup + "/ssa": "Merge"},
	}
	return options
}

// fillNamespace gives a namespace to the objects that need one and name none. A kind that the API server does not know yet
// is left alone: its definition may be among the objects.
func fillNamespace(kube client.Client, objects []*unstructured.Unstructured, namespace string) error {
	for _, object := range objects {
		if object.GetNamespace() != "" {
			continue
		}
		namespaced, err := kube.IsObjectNamespaced(object)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("kind %s: %w", object.GetKind(), err)
		}
		if namespaced {
			object.SetNamespace(namespace)
		}
	}
	return nil
}
