// Package kubelet is the kubelet under the exported names that Kubernetes 1.4 documents for it: [NewMainKubelet] takes a
// KubeletConfiguration and the caller's own parts, and [Kubelet.Run] takes Pods through a channel.
//
// It drives the same agent as berth's commands do. New programs use package agent, which has one constructor, contexts and
// errors. Where a type of that time has gone (docker, rkt, componentconfig), its successor takes its place: the CRI and
// k8s.io/kubelet/config/v1beta1.
package kubelet
