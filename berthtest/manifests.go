package berthtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// document is one object of a file.
type document struct {
	file string
	text []byte
}

// readPaths reads the documents of files, and of the manifests in directories.
func readPaths(paths []string, skipMissing bool) (documents []document, err error) {
	for _, path := range paths {
		files, err := manifestsAt(path)
		if errors.Is(err, fs.ErrNotExist) && skipMissing {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			read, err := readDocuments(file)
			if err != nil {
				return nil, err
			}
			documents = append(documents, read...)
		}
	}
	return documents, nil
}

// manifestsAt returns the path itself if it is a file, or the manifests in it if it is a directory.
func manifestsAt(path string) (files []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
			files = append(files, filepath.Join(path, entry.Name()))
		}
	}
	return files, nil
}

// readDocuments reads the documents of a file.
func readDocuments(file string) (documents []document, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		documents = append(documents, document{file: file, text: text})
	}
}

// createOrUpdate creates an object without a namespace, or updates the existing one. object gets what the API server returns.
func createOrUpdate(ctx context.Context, config *rest.Config, resource schema.GroupVersionResource, object metav1.Object) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	objects := client.Resource(resource)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		wanted := &unstructured.Unstructured{Object: content}
		wanted.SetResourceVersion("")
		saved, err := objects.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			existing, getErr := objects.Get(ctx, object.GetName(), metav1.GetOptions{})
			if getErr != nil {
				return getErr
			}
			wanted.SetResourceVersion(existing.GetResourceVersion())
			saved, err = objects.Update(ctx, wanted, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(saved.Object, object)
	})
}

func deleteObject(ctx context.Context, config *rest.Config, resource schema.GroupVersionResource, name string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	return client.Resource(resource).Delete(ctx, name, metav1.DeleteOptions{})
}
